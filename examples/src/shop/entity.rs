//! The shop's tables.
//!
//! None of them forbids a second shipment or payment of an order: that there is only one is the
//! inbox's doing.

#![allow(missing_docs, reason = "the entity macros add items of their own")]

use sea_orm::{ConnectionTrait, DbErr, EntityTrait, Schema};

/// An order.
pub mod order {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub id: Uuid,
        pub customer: String,
        pub item: String,
        pub city: String,
        pub total_cents: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

/// A parcel.
pub mod shipment {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "shipments")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i64,
        pub order_id: Uuid,
        pub tracking: String,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

/// Money that the payment provider has collected.
pub mod payment {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "payments")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i64,
        pub order_id: Uuid,
        pub reference: String,
        pub cents: i64,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

/// What the customer's search finds.
pub mod search_entry {
    use sea_orm::entity::prelude::*;

    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "search_entries")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub order_id: Uuid,
        /// Unknown until the order itself has been heard of.
        pub words: Option<String>,
        /// Unknown until the shipment has been heard of.
        pub tracking: Option<String>,
    }

    impl ActiveModelBehavior for ActiveModel {}
}

/// Creates the tables that are missing.
///
/// # Errors
///
/// The database refused a statement.
pub async fn create_tables(db: &impl ConnectionTrait) -> Result<(), DbErr> {
    create_table(db, order::Entity).await?;
    create_table(db, shipment::Entity).await?;
    create_table(db, payment::Entity).await?;
    create_table(db, search_entry::Entity).await
}

async fn create_table<E: EntityTrait>(db: &impl ConnectionTrait, entity: E) -> Result<(), DbErr> {
    let schema = Schema::new(db.get_database_backend());
    db.execute(schema.create_table_from_entity(entity).if_not_exists())
        .await?;
    Ok(())
}
